"""What a target, a build and a template argument are: data that checks itself."""
