package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// build returns a file with that header, padded with pad, and data.
func build(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range data {
		b = append(b, byte(i))
	}
	return b
}

const good = `{"__metadata__":{"by":"test"},` +
	`"k":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},` +
	`"q":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},` +
	`"empty":{"dtype":"I64","shape":[0,7],"data_offsets":[12,12]},` +
	`"one":{"dtype":"U8","shape":[],"data_offsets":[20,21]}}   `

func TestRead(t *testing.T) {
	data := build(good, 21)
	f, err := Read(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"by": "test"}, f.Metadata)
	var names []string
	for _, x := range f.Tensors() {
		names = append(names, x.Name)
	}
	require.Equal(t, []string{"q", "empty", "k", "one"}, names)
	k, _ := f.Tensor("k")
	require.Equal(t, Tensor{"k", F32, []int{2}, 12, 20}, k)
	require.EqualValues(t, 8, k.Bytes())
	got := make([]byte, 5)
	require.NoError(t, f.ReadAt(k, got, 3))
	require.Equal(t, []byte{15, 16, 17, 18, 19}, got)
	require.Error(t, f.ReadAt(k, got, 4), "bytes 4 to 9 of 8 were read")
	_, ok := f.Tensor("none")
	require.False(t, ok)

	// The file is shorter now than its size was.
	f, err = Read(bytes.NewReader(data[:len(data)-2]), int64(len(data)))
	require.NoError(t, err)
	require.EqualError(t, f.ReadAt(k, make([]byte, 8), 0), `safetensors: tensor "k": file ends 1 bytes early`)
}

// TestReadRefuses has one row per rule; each message must name the tensor, the
// value and the rule, in one line.
func TestReadRefuses(t *testing.T) {
	one := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"q":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	two := func(a, b string) string {
		return fmt.Sprintf(`{"a":{"dtype":"U8","shape":[4],"data_offsets":%s},"b":{"dtype":"U8","shape":[4],"data_offsets":%s}}`, a, b)
	}
	long := strings.Repeat("x", 5000)
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty file", nil, `file of 0 bytes is truncated: the header length alone takes 8`},
		{"no header", build("", 0), `header does not begin with {`},
		{"header length beyond the file", build(good, 21)[:20], `header length 260 is larger than the 12 bytes that follow it`},
		{"header length of text", []byte(`{"q":{"dtype"}}`), `header length 7215465042617115259 is larger than the limit of 100000000`},
		{"header length all ones", bytes.Repeat([]byte{0xff}, 100), `header length 18446744073709551615 is larger than the limit`},
		{"header length too short", append(binary.LittleEndian.AppendUint64(nil, 100), build(good, 21)[8:]...), `header does not end with } and spaces`},
		{"leading space", build(` {}`, 0), `header does not begin with {`},
		{"trailing newline", build("{}\n", 0), `header does not end with } and spaces`},
		{"two objects", build(`{}{}`, 0), `header is not JSON`},
		{"bad JSON", build(`{"q":}`, 0), `header is not JSON`},
		{"not UTF-8", build("{\"\xff\":1}", 0), `header is not UTF-8`},
		{"too deep", build(`{"q":`+strings.Repeat("[", 20000)+strings.Repeat("]", 20000)+`}`, 0), `header is not JSON`},

		{"tensor is a number", build(`{"q":1}`, 0), `tensor "q": is 1, not an object`},
		{"name twice", build(`{"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), `name "q" occurs twice`},
		{"name twice, once escaped", build(`{"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0071":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), `name "q" occurs twice`},
		{"field twice", build(`{"q":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}}`, 0), `tensor "q": name "dtype" occurs twice`},
		{"field in capitals", build(`{"q":{"DTYPE":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), `tensor "q": field "DTYPE" is not one of dtype, shape, data_offsets`},
		{"unknown field", build(`{"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"strides":[1]}}`, 0), `tensor "q": field "strides" is not one of dtype, shape, data_offsets`},
		{"offsets missing", build(`{"q":{"dtype":"U8","shape":[0]}}`, 0), `tensor "q": field data_offsets is missing`},
		{"dtype unknown", build(one(`"F15"`, `[1]`, `[0,2]`), 2), `tensor "q": dtype "F15" is not known`},
		{"dtype a number", build(one(`16`, `[1]`, `[0,2]`), 2), `tensor "q": dtype is 16, not a string`},
		{"dtype long", build(one(`"`+long+`"`, `[1]`, `[0,2]`), 2), `x" is not known`},
		{"shape an object", build(one(`"U8"`, `{}`, `[0,0]`), 0), `tensor "q": shape is {}, not a list of at most 64 integers from 0 to 9223372036854775807`},
		{"shape negative", build(one(`"U8"`, `[-1]`, `[0,1]`), 1), `tensor "q": shape is [-1], not a list of`},
		{"shape a fraction", build(one(`"U8"`, `[1.0]`, `[0,1]`), 1), `tensor "q": shape is [1.0], not a list of`},
		{"shape holds text", build(one(`"U8"`, `["1"]`, `[0,1]`), 1), `tensor "q": shape is ["1"], not a list of`},
		{"shape null", build(one(`"U8"`, `null`, `[0,1]`), 1), `tensor "q": shape is null, not a list of`},
		{"shape of null", build(one(`"U8"`, `[null]`, `[0,1]`), 1), `tensor "q": shape is [null], not a list of`},
		{"shape over int", build(one(`"U8"`, `[9223372036854775808]`, `[0,1]`), 1), `tensor "q": shape is [9223372036854775808], not a list of`},
		{"shape of many digits", build(one(`"U8"`, `[`+strings.Repeat("9", 5000)+`]`, `[0,1]`), 1), `99…, not a list of`},
		{"shape of many axes", build(one(`"U8"`, `[1`+strings.Repeat(",1", 64)+`]`, `[0,1]`), 1), `,…, not a list of at most 64 integers`},
		{"size overflows", build(one(`"F32"`, `[4294967296,4294967296]`, `[0,0]`), 0), `tensor "q": shape [4294967296 4294967296] of F32 is larger than 2^60 bytes`},
		{"size overflows with the header", build(one(`"U8"`, `[9223372036854775807]`, `[0,9223372036854775807]`), 0), `tensor "q": shape [9223372036854775807] of U8 is larger than 2^60 bytes`},
		{"half a byte", build(one(`"F4"`, `[3]`, `[0,1]`), 1), `tensor "q": shape [3] of F4 is not a whole number of bytes`},
		{"offsets too few", build(one(`"U8"`, `[1]`, `[0]`), 1), `tensor "q": data_offsets holds 1 numbers, not 2`},
		{"offsets negative", build(one(`"U8"`, `[1]`, `[-1,0]`), 1), `tensor "q": data_offsets is [-1,0], not a list of`},
		{"offsets backwards", build(one(`"U8"`, `[1]`, `[1,0]`), 1), `tensor "q": data_offsets [1, 0] run backwards`},
		{"length too short", build(one(`"F16"`, `[2,2]`, `[0,7]`), 7), `tensor "q": data_offsets [0, 7] hold 7 bytes, F16 of shape [2 2] needs 8`},
		{"length too long", build(one(`"F16"`, `[2,2]`, `[0,9]`), 9), `tensor "q": data_offsets [0, 9] hold 9 bytes, F16 of shape [2 2] needs 8`},
		{"data truncated", build(one(`"F16"`, `[2,2]`, `[0,8]`), 7), `tensor "q": data_offsets [0, 8] run past the 7 bytes of data that the file has`},
		{"no data, huge", build(one(`"F32"`, `[1,1,1099511627776,64]`, `[0,281474976710656]`), 0), `tensor "q": data_offsets [0, 281474976710656] run past the 0 bytes of data that the file has`},
		{"same place", build(two(`[0,4]`, `[0,4]`), 4), `tensor "b": data_offsets [0, 4] overlap tensor "a", which ends at 4`},
		{"hole between", build(two(`[0,4]`, `[5,9]`), 9), `tensor "b": data_offsets [5, 9] leave a hole of 1 bytes before it`},
		{"left over", build(two(`[0,4]`, `[4,8]`), 10), `2 bytes of data are left over after the last tensor`},
		{"metadata a list", build(`{"__metadata__":[]}`, 0), `__metadata__: is [], not an object`},
		{"metadata of numbers", build(`{"__metadata__":{"a":1}}`, 0), `__metadata__: "a" is 1, not a string`},
		{"metadata twice", build(`{"__metadata__":{},"__metadata__":{}}`, 0), `name "__metadata__" occurs twice`},
		{"control characters", build(`{"a\nb":1}`, 0), `tensor "a\nb": is 1, not an object`},
	} {
		_, err := Read(bytes.NewReader(c.file), int64(len(c.file)))
		require.ErrorContains(t, err, c.want, c.name)
		require.False(t, strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 300, "no short line: %q", err)
	}
}

// TestHeaderLimit says that nothing is allocated for a header that is too
// long, even if the file could hold it.
func TestHeaderLimit(t *testing.T) {
	huge := binary.LittleEndian.AppendUint64(nil, 1<<40)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Read(bytes.NewReader(huge), 1<<41)
	runtime.ReadMemStats(&after)
	require.Error(t, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path, short := filepath.Join(dir, "x.safetensors"), filepath.Join(dir, "short.safetensors")
	require.NoError(t, os.WriteFile(path, build(good, 21), 0o600))
	require.NoError(t, os.WriteFile(short, []byte("abc"), 0o600))
	f, err := Open(path)
	require.NoError(t, err)
	q, _ := f.Tensor("q")
	p := make([]byte, 12)
	require.NoError(t, f.ReadAt(q, p, 0))
	require.EqualValues(t, 11, p[11])
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file or directory",
		dir:                        "is a directory, not a regular file",
		"/dev/null":                "is a device, not a regular file",
		short:                      "file of 3 bytes is truncated: the header length alone takes 8",
	} {
		_, err := Open(path)
		require.EqualError(t, err, "safetensors: "+path+": "+want)
	}
}

// FuzzRead says that no file makes Read panic, that a refusal is one line, and
// that a file that was accepted covers its data exactly and survives being
// written and read again.
func FuzzRead(f *testing.F) {
	f.Add(build(good, 21))
	f.Add(build(`{"q":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}}`, 4))
	f.Add(build(`{}`, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Read(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			require.False(t, strings.ContainsAny(err.Error(), "\n\r"), err)
			return
		}
		var total int64
		for _, x := range file.Tensors() {
			total += x.Bytes()
			require.NoError(t, file.ReadAt(x, make([]byte, x.Bytes()), 0))
		}
		require.Equal(t, int64(len(data)), file.data+total)
		path := filepath.Join(t.TempDir(), "x")
		require.NoError(t, write(path, file.Tensors(), file.Metadata))
		again, err := Open(path)
		require.NoError(t, err)
		defer again.Close()
		for _, x := range file.Tensors() {
			y, ok := again.Tensor(x.Name)
			require.True(t, ok, x.Name)
			require.Equal(t, x.DType, y.DType)
			require.Equal(t, x.Shape, y.Shape)
		}
	})
}
