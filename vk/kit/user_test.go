package kit_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestOpenUser: a device with the user's folders, and none that is left open where what is there
// cannot be read.
func TestOpenUser(t *testing.T) {
	rtx4090 := &vk.Caps{VendorID: 0x10de, DeviceID: 0x2684, DriverID: 4, DriverVersion: 0x91234000}
	t.Setenv("XDG_CACHE_HOME", "/cache")
	path, err := kit.UserTuningPath(rtx4090)
	require.NoError(t, err)
	require.Equal(t, "/cache/flashvk/tuning/10de-2684-4-91234000.json", path)
	t.Setenv("XDG_CACHE_HOME", "") // no folder, so nothing was tuned
	t.Setenv("HOME", "")
	none, err := kit.UserTuning(rtx4090)
	require.NoError(t, err)
	require.Nil(t, none)

	caps := vktest.Open(t).Caps()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	open := func() *kit.Tuning {
		d, tuning, err := kit.OpenUser(vk.Options{Name: t.Name()})
		require.NoError(t, err)
		require.NoError(t, d.Close())
		return tuning
	}
	require.Nil(t, open())
	path, err = kit.UserTuningPath(caps)
	require.NoError(t, err)
	require.NoError(t, kit.NewTuning(caps).WriteFile(path))
	require.NotNil(t, open())
	require.NoError(t, os.WriteFile(path, []byte(`{"format": 99}`), 0o600))
	_, _, err = kit.OpenUser(vk.Options{Name: t.Name()})
	require.ErrorIs(t, err, kit.ErrNewerTuning)
	require.ErrorContains(t, err, path)
}
