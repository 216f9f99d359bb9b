package main

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench"
)

const resultsFolder = "../../bench/results/h200/"

// measuredFiles have the raw lines of all tables of measurements, as tools/peers/measure makes them.
var measuredFiles = []string{
	"2026_11_24/forward.csv", "2026_11_24/backward.csv", "2026_11_24/decode.csv", "2026_11_24/norm.csv", "2026_11_24/step.csv",
	"train/compiled/*.csv", "2026_11_29/lm_decode_last.csv", "2026_11_29/lm_train_last.csv",
}

// A measuredCase is one problem, measured by our program and by the back ends of PyTorch beside it.
type measuredCase struct {
	table, name string
	ours        map[string]string
	ns          float64            // of ours
	times       map[string]float64 // of the back ends
	memory      map[string]string  // in words, of implementations that say it
}

// peers returns the back ends, the fastest first.
func (c *measuredCase) peers() []string {
	return slices.SortedFunc(maps.Keys(c.times), func(a, b string) int {
		return cmp.Compare(c.times[a], c.times[b])
	})
}

var (
	measuredTable = regexp.MustCompile(`(<!-- go test ./bench/flashvk -run Measured -update writes this table: ([a-z, ]+) -->\n)([^<]*)(<!-- end of the table -->\n)`)
	unit          = regexp.MustCompile(` (ms|µs)\b`)
	// A measure is a number with a unit of time of a kernel, or of a rate.
	measure = regexp.MustCompile(`[0-9.]+[ \x{a0}](?:ms|µs|[GT]FLOP/s|[GT]B/s)`)
	// A choice that says how much memory an implementation takes ends with it.
	memory = regexp.MustCompile(`[0-9.]+ [GM]B\)?$`)
)

// TestMeasured compares the tables of measurements in the documents with the raw lines; with
// -update it writes the tables.
func TestMeasured(t *testing.T) {
	cases := readMeasured(t)
	for _, path := range pages(t) {
		text := document(t, path)
		got := measuredTable.ReplaceAllStringFunc(text, func(region string) string {
			m := measuredTable.FindStringSubmatch(region)
			switch m[2] {
			case "readme":
				return m[1] + ofReadme(t, m[3], cases) + m[4]
			case "matrix":
				return m[1] + ofMatrix(t) + m[4]
			}
			return m[1] + ofTables(t, m[2], cases) + m[4]
		})
		if got != text && *update {
			require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		} else {
			require.Equal(t, text, got, "%s: go test ./bench/flashvk -run Measured -update writes it", path)
		}
	}
	readme := document(t, "../../README.md")
	require.Regexp(t, measuredTable, readme)
	require.Empty(t, measure.FindAllString(measuredTable.ReplaceAllString(readme, ""), -1), "a measurement in README.md belongs into its table")
}

// ofReadme returns the table of README.md, given the table that is there: its first two columns say
// which cases it has.
func ofReadme(t *testing.T, old string, cases []*measuredCase) string {
	table := ""
	lines := strings.SplitAfter(old, "\n")
	for n, line := range lines[2 : len(lines)-1] {
		cells := strings.Split(line, " | ")
		table = cmp.Or(strings.TrimPrefix(cells[0], "| "), table)
		i := slices.IndexFunc(cases, func(c *measuredCase) bool { return c.table == table && c.name == cells[1] })
		require.GreaterOrEqual(t, i, 0, "no raw line has the case of README.md's table %s: %s", table, cells[1])
		row := cases[i].cells()
		row[2], _, _ = strings.Cut(row[2], ", ") // a line of the page is short without the rate and memory
		row[3], _, _ = strings.Cut(row[3], " (")
		lines[n+2] = cells[0] + " | " + unit.ReplaceAllString(strings.Join(row, " | "), "\u00a0$1") + " |\n"
	}
	require.Greater(t, len(lines), 20)
	return strings.Join(lines, "")
}

// ofTables returns the table with the cases of a comma list, which has every back end.
func ofTables(t *testing.T, names string, cases []*measuredCase) string {
	text := "| case | ratio | ours | PyTorch's fastest | ratio to flash or eager | PyTorch's others | commit |\n| --- | --- | --- | --- | --- | --- | --- |\n"
	rows := 0
	for _, c := range cases {
		if !slices.Contains(strings.Split(names, ", "), c.table) {
			continue
		}
		rows++
		var others []string
		for _, p := range c.peers()[min(1, len(c.times)):] {
			others = append(others, p+" "+bench.FormatTime(c.times[p])+c.memory[p])
		}
		cells := c.cells()
		if strings.Contains(names, ",") {
			cells[0] = c.table + ", " + cells[0]
		}
		text += fmt.Sprintf("| %s | %s | %s |\n", strings.Join(cells, " | "), strings.Join(others, ", "), c.ours["commit"][:7])
	}
	require.Positive(t, rows, "no raw line is of the table %s", names)
	return text
}

// ofMatrix returns the table of the ways to make a training step, each by PyTorch's step of its shape.
func ofMatrix(t *testing.T) string {
	lines := rawLines(t, resultsFolder+"2026_11_29/matrix.csv")
	slices.SortStableFunc(lines, func(a, b map[string]string) int { return cmp.Compare(b["peer"], a["peer"]) }) // PyTorch first
	text := "| shape | variant | checkpoint | recording | step | tokens/s | peak memory | over eager | over compile | commit |\n" + strings.Repeat("| --- ", 10) + "|\n"
	times := map[string]float64{}
	for _, line := range lines {
		_, name := describeMeasured(line)
		shape, _, _ := strings.Cut(name, ",")
		row := append([]string{shape}, strings.Split(strings.NewReplacer("torch:", "PyTorch ", "torch", "PyTorch").Replace(line["impl"]), ",")...)
		if line["peer"] == "true" {
			row = append(row, "–", "–")
		}
		row = append(row, line["status"], "–", "–", "–", "–", line["commit"][:7])
		if line["status"] == "ok" {
			var of [3]float64
			for i, key := range []string{"device_ns", "token_per_s", "memory_bytes"} {
				var err error
				of[i], err = strconv.ParseFloat(line[key], 64)
				require.NoError(t, err, "%s: %s", name, key)
			}
			times[shape+line["impl"]] = of[0]
			copy(row[4:], []string{bench.FormatTime(of[0]), bench.FormatSI(of[1], ""), bench.FormatSI(of[2], "B"),
				ratio(times[shape+"torch:eager"], of[0]), ratio(times[shape+"torch:compile"], of[0])})
		}
		text += "| " + strings.Join(row, " | ") + " |\n"
	}
	return text
}

// ratio returns a time by ours in words.
func ratio(ns, ours float64) string {
	if ns == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", ns/ours)
}

// cells returns the case, PyTorch's least time by ours, our time and rate, PyTorch's fastest back end,
// and the time of flash or eager PyTorch by ours.
func (c *measuredCase) cells() []string {
	ours := bench.FormatTime(c.ns)
	bytes := slices.Contains([]string{"norm", "optim", "gmm"}, strings.Fields(c.table)[0])
	for _, rate := range [][2]string{{"tokens_per_s", "tokens/s"}, {"kv_byte_per_s", "B/s"}, {"token_per_s", "tokens/s"}, {"flop_per_s", "FLOP/s"}} {
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
	for _, p := range []string{"flash", "eager"} {
		if c.times[p] > 0 {
			usual = p + " " + ratio(c.times[p], c.ns)
		}
	}
	row := []string{c.name, "–", ours + c.memory["flashvk"], "–", usual}
	if len(c.times) > 0 {
		fastest := c.peers()[0]
		row[1], row[3] = ratio(c.times[fastest], c.ns), fastest+" "+bench.FormatTime(c.times[fastest])+c.memory[fastest]
	}
	return row
}

// readMeasured returns the cases of the raw lines, in the order of the files.
func readMeasured(t *testing.T) (cases []*measuredCase) {
	for _, pattern := range measuredFiles {
		paths, err := filepath.Glob(resultsFolder + pattern)
		require.NoError(t, err)
		if len(paths) == 0 {
			document(t, resultsFolder+pattern) // fails, or skips the test
		}
		for _, path := range paths {
			for _, line := range rawLines(t, path) {
				if line["status"] != "ok" && line["status"] != "" || line["failed"] != "" {
					continue
				}
				table, name := describeMeasured(line)
				i := slices.IndexFunc(cases, func(c *measuredCase) bool { return c.table == table && c.name == name })
				if i < 0 {
					i, cases = len(cases), append(cases, &measuredCase{table: table, name: name, times: map[string]float64{}, memory: map[string]string{}})
				}
				ns, err := strconv.ParseFloat(cmp.Or(line["step_ns"], line["device_ns"]), 64)
				require.NoError(t, err, "%s: %s, %s", path, table, name)
				c, twice := cases[i], "%s: %s, %s: two lines are of one implementation"
				peer, ok := strings.CutPrefix(line["impl"], "torch:")
				if m := memory.FindString(line["choice"]); m != "" {
					c.memory[peer] = " (" + strings.TrimSuffix(m, ")") + ")"
				}
				if ok {
					require.NotContains(t, c.times, peer, twice, path, table, name)
					c.times[peer] = ns
				} else {
					require.Nil(t, c.ours, twice, path, table, name)
					c.ours, c.ns = line, ns
				}
			}
		}
	}
	for _, c := range cases {
		require.True(t, c.ours != nil && (len(c.times) > 0 || strings.HasPrefix(c.table, "lm")), "%s, %s: a line of ours or of PyTorch is missing", c.table, c.name)
	}
	return cases
}

// rawLines returns the lines of a CSV file, by the names of its columns. A file of several calls has
// a header before the lines of each.
func rawLines(t *testing.T, path string) (lines []map[string]string) {
	r := csv.NewReader(strings.NewReader(document(t, path)))
	r.FieldsPerRecord = -1
	records, err := r.ReadAll()
	require.NoError(t, err, path)
	var header []string
	for _, record := range records {
		if record[0] == "gpu" || record[0] == "device" {
			header = record
			continue
		}
		line := map[string]string{}
		for i, name := range header {
			line[name] = record[i]
		}
		lines = append(lines, line)
	}
	return lines
}

// measuredNames are the names of cases by kernel, which have all that differs between lines of a
// table. Columns stand in braces, or two that may differ.
var measuredNames = map[string]string{
	"":          "{shape} B{batch}, {tokens} tokens",
	"attention": "B{batch} H{heads/kv_heads} S{seq_q×seq_kv} D{head_dim} {dtype}{causal}",
	"decode":    "B{batch} H{heads/kv_heads} D{head_dim} {dtype}, {keys} keys{queries}",
	"gemm":      "{dtype} {m}×{n}×{k}",
	"mlp":       "{dtype} {tokens} tokens, {in}→{hidden}→{out}",
	"grouped":   "{dtype} {tokens} tokens, {heads} heads of {in}→{hidden}→{out}",
	"gmm":       "{dtype} {tokens} tokens, {components} components",
	"norm":      "{dtype} {kind}, {rows} rows of {cols}",
	"lm":        "{model} B{batch} S{keys} {dtype}{rank}{accumulate}",
	"optim":     "AdamW, {parameters} parameters, gradients {grad_dtype}, copy {copy}",
}

// measuredMore has what the name of a case says of a column that is not the usual.
var measuredMore = map[string]string{"queries": ", %s queries", "rank": ", LoRA r %s", "accumulate": ", %s batches"}

var measuredColumn = regexp.MustCompile(`\{([a-z_]+)(?:([/×])([a-z_]+))?\}`)

// describeMeasured returns the name of the table of a line, and the name of its case.
func describeMeasured(line map[string]string) (table, name string) {
	kernel, pass, _ := strings.Cut(strings.TrimPrefix(line["kernel"], "train_step"), "_")
	name = measuredColumn.ReplaceAllStringFunc(measuredNames[kernel], func(column string) string {
		m := measuredColumn.FindStringSubmatch(column)
		number := func(key string) int {
			n, _ := strconv.Atoi(line[key])
			return n
		}
		switch x := line[m[1]]; {
		case m[1] == "dtype":
			return strings.NewReplacer("bfloat", "bf", "float", "f").Replace(x)
		case m[1] == "causal":
			return map[string]string{"true": " causal"}[x]
		case m[1] == "tokens" && kernel == "": // of a training step
			n := number("batch") * (number("context") + number("targets"))
			return fmt.Sprintf("%d,%03d", n/1000, n%1000)
		case x == "" || x == "1" && (m[1] == "queries" || m[1] == "accumulate"):
			return ""
		case m[1] == "rank" && x == "0":
			return ", all weights"
		case measuredMore[m[1]] != "":
			return fmt.Sprintf(measuredMore[m[1]], x)
		case m[2] != "" && line[m[3]] != x:
			return x + m[2] + line[m[3]]
		default:
			return x
		}
	})
	if pass == "bwd" && line["keep"] != "" {
		name += ", " + line["keep"] + " kept"
	}
	switch kernel {
	case "":
		return "training step", name
	case "decode", "gemm", "optim":
		return kernel, name
	case "lm":
		return kernel + " " + pass, name
	}
	return kernel + map[string]string{"fwd": " forward", "bwd": " backward"}[pass], name
}
