// Proven lists the committed SPIR-V modules that no record of a GPU proves as they stand
// (package conformance): `go run ./tools/proven`, from anywhere in the repository.
//
// Each is one line on standard output, its name and the reason. The exit status is 1 if
// there are any, and 0, with nothing printed, if there are none.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/flashvk/flashvk/internal/conformance"
)

func main() {
	records, err := conformance.Records()
	if err == nil {
		var modules []conformance.Committed
		if modules, err = conformance.Modules(); err == nil {
			os.Exit(run(os.Stdout, records, modules))
		}
	}
	fmt.Fprintf(os.Stderr, "proven: %v\n", err)
	os.Exit(2)
}

func run(w io.Writer, records []*conformance.Record, modules []conformance.Committed) int {
	gaps := conformance.Unproven(records, modules)
	for _, g := range gaps {
		fmt.Fprintf(w, "%s: %s\n", g.Name, g.Why)
	}
	if len(gaps) > 0 {
		return 1
	}
	return 0
}
