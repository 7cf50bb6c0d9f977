"""CF-CL, contrastive learning with smart device-to-device exchange."""
