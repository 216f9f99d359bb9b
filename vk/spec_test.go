package vk

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheckSpec wants a field for each constant_id, from 0 on.
func TestCheckSpec(t *testing.T) {
	two := struct{ A, B uint32 }{}
	require.NoError(t, checkSpec([]uint32{0, 1}, []uint32{7, 8}, two))
	require.NoError(t, checkSpec([]uint32{0, 1}, nil, nil))
	require.NoError(t, checkSpec(nil, nil, struct{}{}))
	require.EqualError(t, checkSpec([]uint32{0, 2}, []uint32{7, 8}, two),
		"the shader's constant_ids are [0 2]: there is none of 1 for field 1 of struct { A uint32; B uint32 }")
	require.EqualError(t, checkSpec([]uint32{0, 1, 2}, []uint32{7, 8}, two), "the shader has 3 specialization constants, struct { A uint32; B uint32 } has 2")
	require.EqualError(t, checkSpec(nil, []uint32{7, 8}, two), "the shader has 0 specialization constants, struct { A uint32; B uint32 } has 2")
}
