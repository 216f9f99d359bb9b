// Package needcgo is imported by package vk, so that a build without cgo says what it lacks
// before what follows from that.
package needcgo
