package guard

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A T is a *testing.T. The package does not import testing, since the program links it.
type T interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Log(args ...any)
}

// A Parent is a T that has subtests: a *testing.T is a Parent[*testing.T].
type Parent[S any] interface {
	T
	Run(name string, f func(t S)) bool
	Skip(args ...any)
	Errorf(format string, args ...any)
}

// Test fails t with what Check finds wrong, and logs how close the outputs came.
func (c *Case) Test(t T, d *vk.Device, record Record) {
	t.Helper()
	report, err := c.Check(d, record)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
}

// TestWorkspace is Test with that many bytes of memory, full of NaN. Then it wants 4 bytes less
// to be refused by the package of the case's name.
func (c *Case) TestWorkspace(t T, d *vk.Device, bytes int64, record func(workspace *vk.Buffer) Record) {
	t.Helper()
	for _, less := range []int64{0, 4} {
		workspace, err := d.NewBuffer("workspace", bytes-less)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Check(d, func(cmd *vk.Cmd, tensors map[string]vk.Tensor) error {
			cmd.Fill(workspace, 0, workspace.Bytes(), math.MaxUint32)
			return record(workspace)(cmd, tensors)
		})
		workspace.Close()
		want := fmt.Sprintf("%s: workspace has %d bytes, want %d", c.Name, bytes-less, bytes)
		switch {
		case less == 0 && err != nil:
			t.Fatal(err)
		case less > 0 && (err == nil || err.Error() != want):
			t.Fatalf("with less memory the error is %v, want %s", err, want)
		}
	}
}

// TestKernels is Test, and wants the modules that run to be those of a plan, in any order,
// without copies of operands (gemm_pack).
func (c *Case) TestKernels(t T, d *vk.Device, plan kit.Plan, record Record) {
	t.Helper()
	var ran []string
	c.Test(t, d, func(cmd *vk.Cmd, tensors map[string]vk.Tensor) error {
		err := record(cmd, tensors)
		ran = nil
		for _, m := range cmd.Modules() {
			name, _, _ := strings.Cut(m.Name, ".")
			ran = append(ran, name)
		}
		return err
	})
	names := func(list []string) []string {
		list = slices.DeleteFunc(slices.Clone(list), func(name string) bool { return name == "gemm_pack" })
		slices.Sort(list)
		return slices.Compact(list)
	}
	if want, got := names(plan.Kernels()), names(ran); !slices.Equal(want, got) {
		t.Fatalf("%v: the plan has the modules %v, the call runs %v", plan, want, got)
	}
}
