"""What in an environment and in a script will sooner or later make two runs differ, or a resume inexact."""
