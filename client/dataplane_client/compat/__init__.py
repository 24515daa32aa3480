"""The data plane behind the interfaces of training frameworks. Each module is for one of them, and imports it only when
it is used.
"""
