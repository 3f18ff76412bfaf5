# After many failed probes, word that the endpoint works lifts health to 0.3 and
# no further: it comes back with a third of its share.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
60s begin p1                         | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
60s end p1 failure                   | ejected health=0.343 failures=2 ejections=2 until=3m0s unusable <ejected>
180s begin p2                        | probing health=0.343 failures=2 ejections=2 until=3m0s unusable
180s end p2 failure                  | ejected health=0.240 failures=2 ejections=3 until=7m0s unusable <ejected>
420s begin p3                        | probing health=0.240 failures=2 ejections=3 until=7m0s unusable
420s end p3 failure                  | ejected health=0.168 failures=2 ejections=4 until=12m0s unusable <ejected>
720s begin p4                        | probing health=0.168 failures=2 ejections=4 until=12m0s unusable
720s end p4 failure                  | ejected health=0.118 failures=2 ejections=4 until=17m0s unusable <ejected>
1000s readmit                        | healthy health=0.300 failures=0 ejections=4 <readmitted>
1001s begin c                        | healthy health=0.300 failures=0 ejections=4
1001s end c success                  | healthy health=0.510 failures=0 ejections=4
