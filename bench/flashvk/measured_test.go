package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flashvk/flashvk/internal/bench"
)

const resultsFolder = "../../bench/results/h200/"

// measuredFiles have the raw lines of all tables of measurements, as tools/peers/measure makes them.
var measuredFiles = []string{
	"2026_11_24/forward.csv", "2026_11_24/backward.csv", "2026_11_24/decode.csv", "2026_11_24/norm.csv", "2026_11_24/step.csv",
	"train/compiled/*.csv",
}

// readmeCases are the rows of README.md's table, by the name of the table and their case.
var readmeCases = [][2]string{
	{"attention forward", "B4 H16 S4096 D128 f16"},
	{"attention forward", "B1 H16 S16384 D128 bf16"},
	{"attention forward", "B32 H10 S2048 D128 bf16 causal"},
	{"attention forward", "B4 H8 S4096 D256 bf16 causal"},
	{"attention forward", "B4 H32 S4096 D64 f16 causal"},
	{"attention forward", "B4 H32 S1024 D64 f32 causal"},
	{"attention forward", "B1 H8 S128 D64 f16 causal"},
	{"attention backward", "B4 H16 S4096 D128 bf16 causal"},
	{"attention backward", "B1 H16 S16384 D128 bf16"},
	{"attention backward", "B4 H8 S4096 D256 bf16 causal"},
	{"attention backward", "B4 H32 S1024 D64 f16 causal"},
	{"decode", "B64 H32/8 D128 bf16, 4096 keys"},
	{"decode", "B1 H32/8 D128 bf16, 4096 keys"},
	{"training step", "small B32, 18,048 tokens"},
	{"training step", "mid B1, 11,000 tokens"},
	{"gemm", "bf16 4096×4096×4096"},
	{"mlp forward", "bf16 18048 tokens, 512→1365→512"},
	{"mlp backward", "bf16 18048 tokens, 512→1365→512, hidden kept"},
	{"grouped forward", "bf16 16000 tokens, 10 heads of 512→1365→3"},
	{"gmm forward", "f32 16000 tokens, 10 components"},
	{"norm forward", "bf16 LayerNorm, 205000 rows of 512"},
	{"norm forward", "bf16 LayerNorm, 16384 rows of 4096"},
}

// A case is one problem, measured by our program and by the back ends of PyTorch beside it.
type measuredCase struct {
	table, name string
	ours        map[string]string
	peers       []measuredPeer // the fastest first
}

type measuredPeer struct {
	name string
	ns   float64
}

// TestMeasured says that the tables of measurements in the documents are those of the raw lines;
// with -update it writes the tables.
func TestMeasured(t *testing.T) {
	cases := readMeasured(t)
	for _, path := range pages(t) {
		text := document(t, path)
		got := measuredTable.ReplaceAllStringFunc(text, func(region string) string {
			m := measuredTable.FindStringSubmatch(region)
			return m[1] + writeMeasured(t, m[2], cases) + m[3]
		})
		if got != text && *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if got != text {
			t.Errorf("%s: a table is not that of the raw lines: go test ./bench/flashvk -run Measured -update writes it", path)
		}
	}
	readme := document(t, "../../README.md")
	if !measuredTable.MatchString(readme) {
		t.Error("README.md has no table of measurements")
	}
	for _, number := range measure.FindAllString(measuredTable.ReplaceAllString(readme, ""), -1) {
		t.Errorf("README.md: %s is not from a raw line: it belongs into the table of measurements", number)
	}
}

var (
	measuredTable = regexp.MustCompile(`(<!-- go test ./bench/flashvk -run Measured -update writes this table: ([a-z, ]+) -->\n)[^<]*(<!-- end of the table -->\n)`)
	unit          = regexp.MustCompile(` (ms|µs)\b`)
	// A measure is a number with a unit of time of a kernel, or of a rate.
	measure = regexp.MustCompile(`[0-9.]+[ \x{a0}](?:ms|µs|[GT]FLOP/s|[GT]B/s)`)
)

// writeMeasured returns a table: of README.md, or of the tables with the names of a comma list,
// which also has every back end.
func writeMeasured(t *testing.T, names string, cases []measuredCase) string {
	t.Helper()
	var b strings.Builder
	if names == "readme" {
		b.WriteString("| kernel | case | ratio | ours | PyTorch's fastest | ratio to flash or eager |\n| --- | --- | --- | --- | --- | --- |\n")
		last := ""
		for _, r := range readmeCases {
			i := slices.IndexFunc(cases, func(c measuredCase) bool { return c.table == r[0] && c.name == r[1] })
			if i < 0 {
				t.Errorf("no raw line has the case of README.md's table %s: %s", r[0], r[1])
				continue
			}
			table := r[0]
			if table == last {
				table = ""
			}
			last = r[0]
			cells := cases[i].cells()
			cells[2], _, _ = strings.Cut(cells[2], ", ") // a line of the page is short without the rate
			row := strings.Join(append([]string{table}, cells...), " | ")
			fmt.Fprintf(&b, "| %s |\n", unit.ReplaceAllString(row, "\u00a0$1"))
		}
		return b.String()
	}
	b.WriteString("| case | ratio | ours | PyTorch's fastest | ratio to flash or eager | PyTorch's others | commit |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	rows := 0
	for _, c := range cases {
		if !slices.Contains(strings.Split(names, ", "), c.table) {
			continue
		}
		rows++
		var others []string
		for _, p := range c.peers[1:] {
			others = append(others, p.name+" "+bench.FormatTime(p.ns))
		}
		cells := c.cells()
		if strings.Contains(names, ",") {
			cells[0] = c.table + ", " + cells[0]
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", strings.Join(cells, " | "), strings.Join(others, ", "), c.ours["commit"][:7])
	}
	if rows == 0 {
		t.Errorf("no raw line is of the table %s", names)
	}
	return b.String()
}

// cells returns the case, PyTorch's least time by ours, our time and rate, PyTorch's fastest back end,
// and the time of flash or eager PyTorch by ours.
func (c measuredCase) cells() []string {
	ns, _ := measuredTime(c.ours) // readMeasured has seen that it is a number
	ours := bench.FormatTime(ns)
	bytes := slices.Contains([]string{"norm", "optim", "gmm"}, strings.Fields(c.table)[0])
	for _, rate := range [][2]string{{"tokens_per_s", "tokens/s"}, {"kv_byte_per_s", "B/s"}, {"flop_per_s", "FLOP/s"}} {
		key, unit := rate[0], rate[1]
		if unit == "FLOP/s" && bytes {
			key, unit = "byte_per_s", "B/s"
		}
		if x, err := strconv.ParseFloat(c.ours[key], 64); err == nil {
			ours += ", " + bench.FormatSI(x, unit)
			break
		}
	}
	usual := "–"
	for _, p := range c.peers {
		if p.name == "flash" || p.name == "eager" {
			usual = fmt.Sprintf("%s %.2f", p.name, p.ns/ns)
		}
	}
	fastest := c.peers[0]
	return []string{c.name, fmt.Sprintf("%.2f", fastest.ns/ns), ours, fastest.name + " " + bench.FormatTime(fastest.ns), usual}
}

// measuredTime returns the nanoseconds of a line.
func measuredTime(line map[string]string) (float64, error) {
	if ns := line["step_ns"]; ns != "" {
		return strconv.ParseFloat(ns, 64)
	}
	return strconv.ParseFloat(line["device_ns"], 64)
}

// readMeasured returns the cases of the raw lines, in the order of the files.
func readMeasured(t *testing.T) []measuredCase {
	t.Helper()
	var cases []measuredCase
	for _, pattern := range measuredFiles {
		paths, err := filepath.Glob(resultsFolder + pattern)
		if err != nil || len(paths) == 0 {
			document(t, resultsFolder+pattern) // or skip
			t.Fatalf("there is no %s: %v", pattern, err)
		}
		for _, path := range paths {
			for _, line := range rawLines(t, path) {
				if line["status"] != "ok" && line["status"] != "" || line["failed"] != "" {
					continue
				}
				cases = addMeasured(t, cases, path, line)
			}
		}
	}
	for _, c := range cases {
		if c.ours == nil || len(c.peers) == 0 {
			t.Errorf("%s, %s: a line of ours or of PyTorch is missing", c.table, c.name)
		}
		slices.SortFunc(c.peers, func(a, b measuredPeer) int { return int(a.ns - b.ns) })
	}
	if t.Failed() {
		t.FailNow()
	}
	return cases
}

// addMeasured adds a line to its case.
func addMeasured(t *testing.T, cases []measuredCase, path string, line map[string]string) []measuredCase {
	t.Helper()
	table, name := describeMeasured(line)
	i := slices.IndexFunc(cases, func(c measuredCase) bool { return c.table == table && c.name == name })
	if i < 0 {
		i = len(cases)
		cases = append(cases, measuredCase{table: table, name: name})
	}
	ns, err := measuredTime(line)
	if err != nil {
		t.Errorf("%s: %s, %s: %v", path, table, name, err)
	}
	c := &cases[i]
	peer, isPeer := strings.CutPrefix(line["impl"], "torch:")
	switch {
	case isPeer && slices.ContainsFunc(c.peers, func(p measuredPeer) bool { return p.name == peer }), !isPeer && c.ours != nil:
		t.Errorf("%s: %s, %s: two lines are of %s", path, table, name, line["impl"])
	case isPeer:
		c.peers = append(c.peers, measuredPeer{peer, ns})
	default:
		c.ours = line
	}
	return cases
}

// rawLines returns the lines of a CSV file, by the names of its columns. A file of several calls has
// a header before the lines of each.
func rawLines(t *testing.T, path string) []map[string]string {
	t.Helper()
	r := csv.NewReader(strings.NewReader(document(t, path)))
	r.FieldsPerRecord = -1
	var header []string
	var lines []map[string]string
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if slices.Contains([]string{"gpu", "device"}, record[0]) {
			header = record
			continue
		}
		line := map[string]string{}
		for i, name := range header {
			line[name] = record[i]
		}
		lines = append(lines, line)
	}
}

// describeMeasured returns the name of the table of a line, and that of its case, which has all that
// differs between lines of the table.
func describeMeasured(line map[string]string) (table, name string) {
	// Of is a text with the values of columns in the place of their names in braces.
	of := func(text string) string {
		for key, value := range line {
			text = strings.ReplaceAll(text, "{"+key+"}", value)
		}
		return text
	}
	pair := func(a, b, separator string) string {
		if line[a] == line[b] {
			return line[a]
		}
		return line[a] + separator + line[b]
	}
	format := strings.NewReplacer("bfloat", "bf", "float", "f").Replace(line["dtype"])
	kernel, pass, _ := strings.Cut(line["kernel"], "_")
	table = kernel + map[string]string{"fwd": " forward", "bwd": " backward"}[pass]
	switch kernel {
	case "":
		return "training step", describeStep(line)
	case "attention":
		name = of("B{batch} H") + pair("heads", "kv_heads", "/") + " S" + pair("seq_q", "seq_kv", "×") + of(" D{head_dim} ") + format
		if line["causal"] == "true" {
			name += " causal"
		}
	case "decode":
		table = kernel
		name = of("B{batch} H") + pair("heads", "kv_heads", "/") + of(" D{head_dim} ") + format + of(", {keys} keys")
		if line["queries"] != "1" {
			name += of(", {queries} queries")
		}
	case "gemm":
		table = kernel
		name = format + of(" {m}×{n}×{k}")
	case "mlp":
		name = format + of(" {tokens} tokens, {in}→{hidden}→{out}")
	case "grouped":
		name = format + of(" {tokens} tokens, {heads} heads of {in}→{hidden}→{out}")
	case "gmm":
		name = format + of(" {tokens} tokens, {components} components")
	case "norm":
		name = format + of(" {kind}, {rows} rows of {cols}")
	case "optim":
		table, name = kernel, of("AdamW, {parameters} parameters, gradients {grad_dtype}, copy {copy}")
	}
	if pass == "bwd" && line["keep"] != "" {
		name += of(", {keep} kept")
	}
	return table, name
}

// describeStep returns the case of a whole training step.
func describeStep(line map[string]string) string {
	number := func(key string) int {
		n, _ := strconv.Atoi(line[key])
		return n
	}
	tokens := number("batch") * (number("context") + number("targets"))
	return fmt.Sprintf("%s B%d, %s tokens", line["shape"], number("batch"), thousands(tokens))
}

// thousands returns n with a comma before each three digits.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
