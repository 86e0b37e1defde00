"""An OpenAI-compatible endpoint whose sessions keep one policy version. Importing this room loads no HTTP library."""
