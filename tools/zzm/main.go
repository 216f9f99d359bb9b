package main

import (
	"fmt"
	"os"

	"github.com/flashvk/flashvk/internal/conformance"
)

func main() {
	for _, f := range os.Args[2:] {
		r, err := conformance.ReadFile(f)
		if err != nil {
			panic(err)
		}
		if _, err := conformance.MergeFile(os.Args[1], r); err != nil {
			panic(err)
		}
		fmt.Println("merged", f)
	}
}
