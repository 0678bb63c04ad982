"""One page from run folders: `find` reads them, `claims` holds them against the paper, `page` writes what they say."""
