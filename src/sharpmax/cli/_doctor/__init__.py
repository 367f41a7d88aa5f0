"""What `sharpmax doctor` runs, in a process of its own per framework: a crash is a finding."""
