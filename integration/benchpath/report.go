//go:build linux

package main

func (r *result) report() ([]byte, error) { return nil, nil }
