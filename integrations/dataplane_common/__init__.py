"""What several integrations need: the progress of a training run, and numbers as a framework gives them."""
