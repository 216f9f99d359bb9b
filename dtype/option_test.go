package dtype

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOption(t *testing.T) {
	var none Option
	require.Equal(t, "none", none.String())
	text, err := json.Marshal(none)
	require.NoError(t, err)
	require.Equal(t, "null", string(text))
	for format := Float32; format.Valid(); format++ {
		require.Equal(t, format, none.Or(format))
		some := Some(format)
		require.NotEqual(t, none, some)
		require.Equal(t, format, some.Or(Float16))
		require.Equal(t, format.String(), some.String())
		text, err := json.Marshal(some)
		require.NoError(t, err)
		of, err := json.Marshal(format)
		require.NoError(t, err)
		require.Equal(t, string(of), string(text))
		for _, back := range []Option{none, Some(E4M3)} {
			require.NoError(t, json.Unmarshal(text, &back))
			require.Equal(t, some, back)
			require.NoError(t, json.Unmarshal([]byte("null"), &back))
			require.Equal(t, none, back)
		}
	}
	require.Error(t, json.Unmarshal([]byte("99"), &none))
	require.Error(t, json.Unmarshal([]byte(`"float16"`), &none))
}
