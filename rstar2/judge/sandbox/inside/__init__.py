"""What runs inside the jail: imported by a bare interpreter, so nothing here imports more than it must."""
