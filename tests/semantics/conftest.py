"""What the data plane means: one file for each behaviour."""

from tests.core.conftest import caller as caller
from tests.core.conftest import new_caller as new_caller
