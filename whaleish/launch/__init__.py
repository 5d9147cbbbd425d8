"""Starting programs on several processes: building Horovod, checking the machine, running the ranks."""
