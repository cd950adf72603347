from hotloop_process import finished, finished_once, hotloop, spec_file

__all__ = ["finished", "finished_once", "hotloop", "spec_file"]
