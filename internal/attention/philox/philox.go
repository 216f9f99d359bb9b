// Package philox generates random numbers from a counter: Philox-4x32-10 of
// Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011), as in the authors' Random123 and in cuRAND.
//
// A number depends on nothing but key and counter, so that whoever needs it
// again, in another order or on another device, gets the same.
package philox

import "math/bits"

// Multipliers and the steps of the key, from the paper; the steps are the
// golden ratio and √3 - 1 in units of 2^-32.
const (
	multiplier0 = 0xD2511F53
	multiplier1 = 0xCD9E8D57
	step0       = 0x9E3779B9
	step1       = 0xBB67AE85

	rounds = 10
)

// Words returns the 128 random bits that belong to a counter under a key. In
// each of ten rounds
//
//	(c0, c1, c2, c3) = (hi(c2*M1) ^ c1 ^ k0, lo(c2*M1), hi(c0*M0) ^ c3 ^ k1, lo(c0*M0))
//
// with hi and lo the halves of a 64-bit product, and (k0, k1) grows by
// (step0, step1) between rounds.
func Words(counter [4]uint32, key [2]uint32) [4]uint32 {
	c, k := counter, key
	for range rounds {
		hi0, lo0 := bits.Mul32(multiplier0, c[0])
		hi1, lo1 := bits.Mul32(multiplier1, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ k[0], lo1, hi0 ^ c[3] ^ k[1], lo0}
		k[0] += step0
		k[1] += step1
	}
	return c
}
