// cache_status: bits of state[0], what only the device can see of a cache of keys and values.

const uint BAD_LENGTH = 1;  // a sequence is negative, or longer than its cache
const uint BAD_PAGE = 2;    // a page that there is not
const uint BAD_BATCH = 4;   // likewise a row of the cache
