package text

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSnake(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "Name": "name", "APIVersion": "api_version", "VendorID": "vendor_id", "MaxSharedMemoryBytes": "max_shared_memory_bytes",
		"CooperativeMatrix2": "cooperative_matrix2", "NS": "ns", "Float16": "float16", "head_dim": "head_dim", "kv-heads": "kv-heads", "DTypeA": "d_type_a",
	} {
		require.Equal(t, want, Snake(in))
	}
}
