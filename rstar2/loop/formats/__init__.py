"""What a model sees around a problem: chat template, tools, the layout of their replies, and limits."""
