package vktest_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// recorder is a test that notes how it ended.
type recorder struct {
	testing.TB
	outcome  string // "", "skip", "fail"
	message  string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Name() string     { return "Recorded" }
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.outcome, r.message = "fail", fmt.Sprintf(format, args...)
}
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
func (r *recorder) Fatal(args ...any)                 { r.Fatalf("%s", fmt.Sprint(args...)) }
func (r *recorder) Skip(args ...any)                  { r.Skipf("%s", fmt.Sprint(args...)) }
func (r *recorder) Skipf(format string, args ...any) {
	r.outcome, r.message = "skip", fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// record runs f as a test.
func record(f func(t testing.TB)) *recorder {
	r := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, c := range r.cleanups {
				c()
			}
		}()
		f(r)
	}()
	<-done
	return r
}

func TestRequire(t *testing.T) {
	lacking := errors.New("it has no matrices")
	for _, c := range []struct {
		required, path string
		err            error
		want           string
	}{
		{"", "coopmat", nil, ""},
		{"coopmat", "coopmat", nil, ""},
		{"", "coopmat", lacking, "skip"},
		{"coopmat", "coopmat", lacking, "fail"},
		{"scalar, coopmat", "coopmat", lacking, "fail"},
		{"coopmat2,scalar", "coopmat", lacking, "skip"}, // another name, not a part of one
	} {
		t.Setenv("FLASHVK_REQUIRE", c.required)
		r := record(func(t testing.TB) { vktest.Require(t, c.path, c.err) })
		if r.outcome != c.want || c.want != "" && !strings.Contains(r.message, lacking.Error()) {
			t.Errorf("%q required, %s: %v: %q (%s), want %q with the reason", c.required, c.path, c.err, r.outcome, r.message, c.want)
		}
	}
}

func TestOpenWithoutDevice(t *testing.T) {
	t.Setenv("VK_DRIVER_FILES", filepath.Join(t.TempDir(), "none.json"))
	for required, want := range map[string]string{"": "skip", "scalar": "fail"} {
		t.Setenv("FLASHVK_REQUIRE", required)
		if r := record(func(t testing.TB) { vktest.Open(t) }); r.outcome != want || !strings.Contains(r.message, "no Vulkan") {
			t.Errorf("with %q required: %q (%s), want %q", required, r.outcome, r.message, want)
		}
	}
}

func TestOpenReportsLeaks(t *testing.T) {
	vktest.Open(t)
	r := record(func(t testing.TB) {
		if _, err := vktest.Open(t).NewBuffer("forgotten", 64); err != nil {
			t.Fatal(err)
		}
	})
	require.Equal(t, "fail", r.outcome)
	require.Contains(t, r.message, `buffer "forgotten"`)
	if r := record(func(t testing.TB) { vktest.Open(t, vktest.NoValidation) }); r.outcome != "" {
		t.Errorf("nothing wrong ends as %q (%s)", r.outcome, r.message)
	}
	if r := record(func(t testing.TB) { vktest.Open(t, func(o *vk.Options) { o.Device = "toaster" }) }); r.outcome != "skip" && r.outcome != "fail" {
		t.Errorf("a device that is not there ends as %q", r.outcome)
	}
}

// TestThorough wants all on a GPU, and on a CPU device where the environment says so.
func TestThorough(t *testing.T) {
	d := vktest.Open(t)
	for kind, want := range map[vk.DeviceType][2]bool{vk.DiscreteGPU: {true, true}, vk.CPU: {false, true}} {
		d.Caps().Type = kind
		for i, value := range []string{"", "1"} {
			t.Setenv("FLASHVK_ALL", value)
			require.Equal(t, want[i], vktest.Thorough(d), kind)
		}
	}
}

// TestValues stores numbers in a format, and zeros.
func TestValues(t *testing.T) {
	d := vktest.Open(t)
	got := make([]float32, 4)
	for _, x := range []struct {
		t    vk.Tensor
		want []float32
	}{
		{vktest.Values(t, d, dtype.BFloat16, []float64{1, 257, -2, 0.5}, 2, 2), []float32{1, 256, -2, 0.5}},
		{vktest.Values[float32](t, d, dtype.Float32, nil, 4), []float32{0, 0, 0, 0}},
	} {
		if err := x.t.Download(t.Context(), got); err != nil || !slices.Equal(got, x.want) {
			t.Errorf("%v, %v, want %v", got, err, x.want)
		}
	}
}

func TestMain(m *testing.M) { vktest.Main(m) }

// Example stands for the examples of other packages: it fails without a device.
func Example() {
	list, err := vk.List()
	fmt.Println(len(list) > 0, err)
	// Output: true <nil>
}

// TestMainSkipsExamples runs this program again where there is no device.
func TestMainSkipsExamples(t *testing.T) {
	for _, c := range []struct {
		required string
		skip     string
		passes   bool
	}{
		{"", "", true},
		{"", "^TestRequire$", true},
		{"scalar", "", false},
	} {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^(Example|TestRequire)$", "-test.skip="+c.skip)
		cmd.Env = append(os.Environ(), "VK_DRIVER_FILES="+filepath.Join(t.TempDir(), "none.json"), "FLASHVK_REQUIRE="+c.required)
		out, err := cmd.CombinedOutput()
		if (err == nil) != c.passes || strings.Contains(string(out), "=== RUN   Example") == c.passes {
			t.Errorf("FLASHVK_REQUIRE=%q -skip %q: %v, want success %v\n%s", c.required, c.skip, err, c.passes, out)
		}
		if ran := strings.Contains(string(out), "=== RUN   TestRequire"); ran != (c.skip == "") {
			t.Errorf("-skip %q: TestRequire ran: %v", c.skip, ran)
		}
	}
}
