// Package faults holds tests of what happens when something fails: each call of the driver
// that can fail on a full or a lost device, in turn, and devices and recordings that come and
// go by the hundred, by the hundred thousand with FLASHVK_LONG=1, or a round of FLASHVK_LONG=N.
package faults
