package files

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestExclusively has many read a number and write the next one.
func TestExclusively(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "n")
	const writers, times = 8, 25
	var all sync.WaitGroup
	for range writers {
		all.Add(1)
		go func() {
			defer all.Done()
			for range times {
				assert.NoError(t, Exclusively(path, func() error {
					text, _ := os.ReadFile(path)
					n, _ := strconv.Atoi(string(text))
					return os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600)
				}))
			}
		}()
	}
	all.Wait()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(writers*times), string(text))
	require.ErrorIs(t, Exclusively(path, func() error { return os.ErrExist }), os.ErrExist)
}
