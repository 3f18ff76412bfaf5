// Package cniinstall puts the CNI plugin isthmus-cni on a node, and its entry last in the chain that the node's container
// runtime uses: the first file of the directory of network configurations.
//
// It promises: each file is replaced whole or not at all, and only while it is as it was read; what is as it should be is not written again; nothing of a
// configuration but the entry is changed; and when the node's own CNI writes its configuration anew the entry is put back. Remove takes all of it
// back but the binary, which runtimes call for pods that were started with it.
package cniinstall
