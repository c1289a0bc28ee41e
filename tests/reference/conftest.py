from tests.reference.fixtures import references

__all__ = ["references"]
