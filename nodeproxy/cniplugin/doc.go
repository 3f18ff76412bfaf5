// Package cniplugin is the CNI plugin that has a pod wait, before anything of it runs, until the node proxy is in its
// network namespace. It comes last in a chain: it gives no addresses and sets nothing itself.
//
// It promises: what the plugins before it came to is printed as it was; it waits no longer than it was told; DEL never
// fails; and a pod that the mesh has nothing to do with waits for nobody, if its namespace is excluded.
package cniplugin
