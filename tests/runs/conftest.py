from hotloop_process import finished, finished_once, hotloop, hotloop_here, spec_file

__all__ = ["finished", "finished_once", "hotloop", "hotloop_here", "spec_file"]
