package text

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                              "",
		"NVIDIA  H200":                  "NVIDIA H200",
		" a\nb\tc\r\n":                  "a b c",
		"\x1b[2Jgone\x07":               "[2Jgone",
		"right\u202etfel\u200bzero":     "right tfel zero",
		"\xffbad\x80":                   "bad",
		"max|Δ| ± 3 % … 日本":             "max|Δ| ± 3 % … 日本",
		"\u009b31m C1 \u0085 next \x7f": "31m C1 next",
	} {
		require.Equal(t, want, Line(in), "%q", in)
	}
	require.Equal(t, "a  b ", Printable("a  b\n"))
	require.Equal(t, "日本語", Short("日本語", 3))
	require.Equal(t, "日…", Short("日本語", 2))
}

func TestSnake(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "Name": "name", "APIVersion": "api_version", "VendorID": "vendor_id", "MaxSharedMemoryBytes": "max_shared_memory_bytes",
		"CooperativeMatrix2": "cooperative_matrix2", "NS": "ns", "Float16": "float16", "head_dim": "head_dim", "kv-heads": "kv-heads", "DTypeA": "d_type_a",
	} {
		require.Equal(t, want, Snake(in))
	}
}
