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

// rtx4090 is a device that is not here.
func rtx4090() *vk.Caps {
	return &vk.Caps{VendorID: 0x10de, DeviceID: 0x2684, DriverID: 4, DriverVersion: 0x91234000}
}

// TestUserTuningPath has the one place of the user's files.
func TestUserTuningPath(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/cache")
	path, err := kit.UserTuningPath(rtx4090())
	require.NoError(t, err)
	require.Equal(t, "/cache/flashvk/tuning/10de-2684-4-91234000.json", path)
}

// TestUserTuning wants no error where there is no file, and one for a file that is none.
func TestUserTuning(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	x, err := kit.UserTuning(rtx4090())
	require.NoError(t, err)
	require.Nil(t, x)
	path, err := kit.UserTuningPath(rtx4090())
	require.NoError(t, err)
	require.NoError(t, kit.NewTuning(rtx4090()).WriteFile(path))
	x, err = kit.UserTuning(rtx4090())
	require.NoError(t, err)
	require.NotNil(t, x)
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, err = kit.UserTuning(rtx4090())
	require.ErrorContains(t, err, path)
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	x, err = kit.UserTuning(rtx4090())
	require.NoError(t, err)
	require.Nil(t, x)
}
