package tests

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
	"github.com/flashvk/flashvk/vk/vktest"
)

// A face is what a kernel package shows its users, as package kit wants it.
type face struct {
	problem, tensors, gradients, options, plan any

	forward, backward, choose, supports, workspace any
}

// faces has a row for each kernel package that keeps the contract.
var faces = map[string]face{
	"attention": {
		attention.Problem{}, attention.Tensors{}, attention.Gradients{}, attention.Options{}, attention.Plan{},
		attention.Forward, attention.Backward, attention.Choose, attention.Supports, attention.Workspace,
	},
	"pipelines/gmm": {
		gmm.Problem{}, gmm.Tensors{}, gmm.Gradients{}, gmm.Options{}, gmm.Plan{},
		gmm.Forward, gmm.Backward, gmm.Choose, gmm.Supports, gmm.Workspace,
	},
	"pipelines/norm": {
		norm.Problem{}, norm.Tensors{}, norm.Gradients{}, norm.Options{}, norm.Plan{},
		norm.Forward, norm.Backward, norm.Choose, norm.Supports, norm.Workspace,
	},
}

// TestContract holds the packages to package kit: the shapes of their functions, and that
// types are declared where they are imported, tensors have names, and options hold none.
func TestContract(t *testing.T) {
	cmd, caps, pass := reflect.TypeFor[*vk.Cmd](), reflect.TypeFor[*vk.Caps](), reflect.TypeFor[kit.Pass]()
	failure, tensor := reflect.TypeFor[error](), reflect.TypeFor[vk.Tensor]()
	for name, f := range faces {
		t.Run(name, func(t *testing.T) {
			of := reflect.TypeOf
			p, x, g, o, plan := of(f.problem), of(f.tensors), of(f.gradients), of(f.options), of(f.plan)
			for word, typ := range map[string]reflect.Type{"Problem": p, "Tensors": x, "Gradients": g, "Options": o, "Plan": plan} {
				require.Equal(t, word, typ.Name())
				require.Equal(t, "github.com/flashvk/flashvk/"+name, typ.PkgPath(), "%s is declared elsewhere", word)
			}
			signature := func(function any, in, out []reflect.Type) {
				t.Helper()
				require.Equal(t, reflect.FuncOf(in, out, false), of(function))
			}
			type list = []reflect.Type
			signature(f.forward, list{cmd, x, p, o}, list{failure})
			signature(f.backward, list{cmd, x, g, p, o}, list{failure})
			signature(f.choose, list{caps, p, pass, o}, list{plan, failure})
			signature(f.supports, list{caps, p, pass, o}, list{failure})
			signature(f.workspace, list{caps, p, pass, o}, list{reflect.TypeFor[int64](), failure})

			// A caller who overlooks an error runs nothing all the same.
			d := vktest.Open(t)
			for _, function := range []any{f.forward, f.backward} {
				c, err := d.NewCmd("overlooked")
				require.NoError(t, err)
				defer c.Close()
				call := of(function)
				in := []reflect.Value{reflect.ValueOf(c)}
				for i := 1; i < call.NumIn(); i++ {
					in = append(in, reflect.Zero(call.In(i))) // no problem, no tensors
				}
				refused := reflect.ValueOf(function).Call(in)[0].Interface()
				require.NotNil(t, refused)
				require.Equal(t, refused, c.Submit(context.Background()))
			}

			require.True(t, p.Comparable())
			validate := reflect.TypeFor[interface{ Validate() error }]()
			require.True(t, p.Implements(validate), "%v has no Validate", p)
			require.True(t, plan.Implements(reflect.TypeFor[kit.Plan]()), "%v is no kit.Plan", plan)
			for _, s := range []reflect.Type{x, g} {
				for i := range s.NumField() {
					require.Equal(t, tensor, s.Field(i).Type, "%v.%s", s, s.Field(i).Name)
				}
			}
			for i := range o.NumField() {
				require.NotEqual(t, tensor, o.Field(i).Type, "%v.%s", o, o.Field(i).Name)
			}
		})
	}
}
