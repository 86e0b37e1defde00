"""`offbeat plan`: what one short run says about the learning rates and stalenesses that longer ones would survive."""
