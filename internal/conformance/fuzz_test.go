package conformance

import (
	"bytes"
	"testing"
)

// FuzzParse says that no record makes us panic, and that one that is accepted is read again as
// it is written.
func FuzzParse(f *testing.F) {
	records, err := Records()
	if err != nil {
		f.Fatal(err)
	}
	for _, r := range records {
		small := *r
		small.Modules, small.Random = r.Modules[:min(3, len(r.Modules))], r.Random[:min(2, len(r.Random))]
		f.Add(Format(&small))
	}
	f.Add([]byte(`{"device": "x", "driver_version": "1", "modules": [{"name": "m", "sha256": "", "verdict": "proven"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		once := Format(r)
		again, err := Parse(once)
		if err != nil {
			t.Fatalf("%v of %s", err, once)
		}
		if twice := Format(again); !bytes.Equal(once, twice) {
			t.Errorf("%s is written as %s", once, twice)
		}
	})
}
