"""Episodes: environments with tools and several turns, as asynchronous code that calls the endpoint of its run."""
