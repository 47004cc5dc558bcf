"""What each op becomes, one file per kind of op; every file here registers its own."""
