package vktest_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
)

// recorder is a test that notes how it ended.
type recorder struct {
	testing.TB
	outcome, message string
	cleanups         []func()
}

func (r *recorder) end(outcome, message string) {
	r.outcome, r.message = outcome, message
	runtime.Goexit()
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Errorf(format string, args ...any) {
	r.outcome, r.message = "fail", fmt.Sprintf(format, args...)
}

func (r *recorder) Helper()                           {}
func (r *recorder) Name() string                      { return "Recorded" }
func (r *recorder) Fatalf(format string, args ...any) { r.end("fail", fmt.Sprintf(format, args...)) }
func (r *recorder) Skip(args ...any)                  { r.end("skip", fmt.Sprint(args...)) }
func (r *recorder) Skipf(format string, args ...any)  { r.end("skip", fmt.Sprintf(format, args...)) }

// TestRequire: what a machine lacks skips a test, or fails it where the environment says that it is there.
func TestRequire(t *testing.T) {
	t.Setenv("VK_DRIVER_FILES", filepath.Join(t.TempDir(), "none.json"))
	lacking := func(t testing.TB) { vktest.Require(t, "coopmat", errors.New("it has no matrices")) }
	open := func(t testing.TB) { vktest.Open(t) }
	for _, c := range []struct {
		required, want, message string
		run                     func(testing.TB)
	}{
		{"coopmat", "", "", func(t testing.TB) { vktest.Require(t, "coopmat", nil) }},
		{"", "skip", "no matrices", lacking},
		{"scalar, coopmat", "fail", "no matrices", lacking},
		{"coopmat2,scalar", "skip", "no matrices", lacking}, // another name, not a part of one
		{"", "skip", "no Vulkan", open},
		{"scalar", "fail", "no Vulkan", open},
	} {
		t.Setenv("FLASHVK_REQUIRE", c.required)
		r, done := &recorder{}, make(chan struct{})
		go func() {
			defer close(done)
			c.run(r)
		}()
		<-done
		require.Equal(t, c.want, r.outcome, c)
		require.Contains(t, r.message, c.message)
	}
}

// TestLeaks: what a test leaves open on a device fails it.
func TestLeaks(t *testing.T) {
	vktest.Open(t)
	r := &recorder{}
	_, err := vktest.Open(r).NewBuffer("forgotten", 64)
	require.NoError(t, err)
	for _, f := range r.cleanups {
		f()
	}
	require.Equal(t, "fail", r.outcome)
	require.Contains(t, r.message, `buffer "forgotten"`)
}
