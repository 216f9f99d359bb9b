// Proven lists the committed SPIR-V modules that no record of a GPU proves as they stand
// (package conformance): `go run ./tools/proven`, from anywhere in the repository.
//
// Each is one line on standard output, its name and the reason. The exit status is 1 if
// there are any, and 0, with nothing printed, if there are none.
package main

import (
	"errors"
	"fmt"
	"os"

	records "github.com/flashvk/flashvk/conformance"
	"github.com/flashvk/flashvk/internal/conformance"
)

func main() {
	list, err := conformance.Read(records.Records)
	committed, errModules := conformance.Committed()
	if err = errors.Join(err, errModules); err != nil {
		fmt.Fprintf(os.Stderr, "proven: %v\n", err)
		os.Exit(2)
	}
	lines := conformance.Unproven(list, committed)
	for _, line := range lines {
		fmt.Println(line)
	}
	if len(lines) > 0 {
		os.Exit(1)
	}
}
