package kit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestOpenUser: a device with the user's folders, and none that is left open where what is there
// cannot be read.
func TestOpenUser(t *testing.T) {
	caps := vktest.Open(t).Caps()
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	d, tuning, err := kit.OpenUser(vk.Options{Name: t.Name()})
	require.NoError(t, err)
	require.Nil(t, tuning)
	require.NoError(t, d.Close())
	path, err := kit.UserTuningPath(caps)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(cache, "flashvk", "tuning"), filepath.Dir(path))
	require.NoError(t, kit.NewTuning(caps).WriteFile(path))
	d, tuning, err = kit.OpenUser(vk.Options{Name: t.Name()})
	require.NoError(t, err)
	require.NotNil(t, tuning)
	require.NoError(t, d.Close())
	require.NoError(t, os.WriteFile(path, []byte(`{"format": 99}`), 0o600))
	_, _, err = kit.OpenUser(vk.Options{Name: t.Name()})
	require.ErrorIs(t, err, kit.ErrNewerTuning)
	require.ErrorContains(t, err, path)
}
