package vk

import (
	"crypto/sha256"
	"slices"
	"testing"
)

// FuzzCheckCache says that of a cache file nothing reaches the driver but the data of a whole
// one of this device.
func FuzzCheckCache(f *testing.F) {
	header, data := []byte("flashvk1 device"), []byte("pipelines")
	sum := sha256.Sum256(data)
	good := slices.Concat(header, sum[:], data)
	f.Add(good, uint16(0), byte(0))
	f.Add(good, uint16(len(good)-1), byte(1))
	f.Add(header, uint16(3), byte(255))
	f.Fuzz(func(t *testing.T, file []byte, at uint16, flip byte) {
		got := checkCache(file, header)
		if got == nil {
			return
		}
		sum := sha256.Sum256(got)
		if want := slices.Concat(header, sum[:], got); !slices.Equal(file, want) {
			t.Fatalf("%q is accepted as %q", file, got)
		}
		if i := int(at) % len(file); flip != 0 {
			changed := slices.Clone(file)
			changed[i] ^= flip
			if checkCache(changed, header) != nil {
				t.Errorf("byte %d changed is accepted", i)
			}
		}
	})
}
