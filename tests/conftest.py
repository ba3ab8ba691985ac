"""Makes the helpers beside it (tiny_models) importable from every test folder."""
