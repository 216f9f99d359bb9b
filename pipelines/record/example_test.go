package record_test

import (
	"fmt"
	"log"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/vk"
)

// The steps are the rows of the package's table. B and d are large and share memory. The plan says
// so without a device.
func Example() {
	kernel := func(*vk.Cmd) error { return nil } // what records it
	p := record.New("block")
	a := p.Input("a", dtype.Float16, 1<<16, 1024)
	b, c, d := p.Tensor("b", dtype.Float16, 1<<16, 1024), p.Tensor("c", dtype.Float16, 1<<16, 1024), p.Tensor("d", dtype.Float16, 1<<16, 1024)
	p.Step("norm", []*record.Tensor{a}, []*record.Tensor{b}, kernel)
	p.Step("product", []*record.Tensor{b}, []*record.Tensor{c}, kernel)
	p.Step("silu", []*record.Tensor{c}, []*record.Tensor{d}, kernel)
	p.Step("sum", []*record.Tensor{a, d}, []*record.Tensor{a}, kernel)
	m, err := p.Plan(1 << 30)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Steps(), "steps,", m)
	// Output: 4 steps, 402.7 MB, the most at product: a 134.2 MB, b 134.2 MB, c 134.2 MB
}
