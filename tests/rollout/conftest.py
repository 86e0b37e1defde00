from __future__ import annotations

import torch
from transformers.utils import logging

logging.disable_progress_bar()
torch.set_num_threads(1)
