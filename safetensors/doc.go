// Package safetensors reads and writes safetensors files, strictly.
//
// A file is
//
//	bytes        content
//	0 … 7        N, the length of the header: unsigned 64-bit, little-endian
//	8 … 7+N      the header: a JSON object, padded at its end with spaces (0x20)
//	8+N …        the data of all tensors, one after another, without holes
//
// and the header maps each tensor's name to its description:
//
//	{"__metadata__": {"any": "text"},
//	 "q": {"dtype": "F16", "shape": [1, 8, 512, 64], "data_offsets": [0, 524288]}}
//
// Offsets count from the first byte of the data; a tensor occupies
// [begin, end). Elements are little-endian, in row-major order (the last axis
// is contiguous).
//
// Strictly means that a file is refused, with one line that names the tensor,
// the value and the rule, if a name occurs twice, a field is missing or
// unknown, offsets overlap, leave a hole, run past the end of the file or do not agree
// with dtype and shape, or bytes are left over. The header is limited to
// MaxHeaderBytes before anything is allocated for it, and the data of a tensor is read only
// when asked for.
//
// Source: the format description in the README of
// github.com/huggingface/safetensors.
package safetensors

// MaxHeaderBytes is the longest header that is read, the limit of the
// reference implementation.
const MaxHeaderBytes = 100_000_000

// MetadataName is the header's key for free text; no tensor may have this
// name.
const MetadataName = "__metadata__"

// headerLengthBytes is the size of the length field at the start of a file.
const headerLengthBytes = 8
