package conformance

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "TestReadme writes the table of devices into README.md")

// What the table stands between in README.md.
const (
	tableBegin = "<!-- go test ./internal/conformance -run Readme -update writes this table -->\n"
	tableEnd   = "<!-- end of the table -->\n"
)

// TestReadme compares the table of devices in README.md with the records and the
// modules; with -update it writes the table.
func TestReadme(t *testing.T) {
	const path = "../../README.md"
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("README.md is not here")
	}
	require.NoError(t, err)
	records, err := Records()
	require.NoError(t, err)
	modules, err := Modules()
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), tableBegin)
	old, after, ok2 := strings.Cut(rest, tableEnd)
	require.True(t, ok && ok2, "README.md does not have the lines\n%s%s", tableBegin, tableEnd)
	want := Table(records, modules)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+tableBegin+want+tableEnd+after), 0o644))
		return
	}
	require.Equal(t, want, old, "go test ./internal/conformance -run Readme -update writes the table anew")
}

func TestTable(t *testing.T) {
	current := []Committed{{"a", hash("1")}, {"b", hash("1")}, {"c", hash("1")}}
	require.Equal(t, `No device has a record yet: none of the 3 modules is proven.

No record covers these families of GPUs: AMD rdna3, rdna4; Intel xe2; NVIDIA ada, ampere, ampere-rtx, blackwell-rtx, hopper;
nor any GPU of a vendor without a family here (Apple, Arm, Imagination, Qualcomm).
`, Table(nil, current))
	r := h200(Module{Name: "a", SHA256: hash("1"), Fixed: 1}, Module{Name: "b", SHA256: hash("1"), Wrong: 1}, Module{Name: "c", SHA256: hash("2"), Fixed: 1})
	r.Random = []Random{{"gemm", 1, "x", 100, 1}, {"mlp", 1, "x", 7, 0}}
	require.Equal(t, `| device | driver | modules proven, of 3 | wrong | random problems passed | failed |
| --- | --- | --- | --- | --- | --- |
| NVIDIA H200 | NVIDIA 580.159.04, Vulkan 1.4.312 | 1 | 1 | 106 | 1 |
| llvmpipe (LLVM 21.1.8, 256 bits) | llvmpipe Mesa 26.1.6-1 (LLVM 21.1.8), Vulkan 1.4.312 | none: it is a CPU, on which 1 are right | 0 | 0 | 0 |

No record covers these families of GPUs: AMD rdna3, rdna4; Intel xe2; NVIDIA ada, ampere, ampere-rtx, blackwell-rtx;
nor any GPU of a vendor without a family here (Apple, Arm, Imagination, Qualcomm).
`, Table([]*Record{softly(Module{Name: "a", SHA256: hash("1"), Fixed: 1}), r}, current))
}
