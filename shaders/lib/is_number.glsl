// is_number: whether a float is neither an infinity nor a NaN.

// is_number returns false for infinities and NaNs. It asks the bits: Vulkan lets a compiler take
// isnan to be false.
bool is_number(const float x) { return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u; }
